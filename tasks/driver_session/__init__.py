"""The session of a flow run: its driver, the thread of its stages, and its log.

session        the session, which the tasks of this process find in their context
stages_thread  the thread in which the stages run, and what they return or raise
session_log    the lines of the driver and its workers, and the flow's own warnings
ticker         a function that is called at intervals beside a long stage
"""
