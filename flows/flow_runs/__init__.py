"""Flow runs in Prefect: how they wait, end, crash, are cancelled, or lose their process.

prefect_engine    Prefect's engine, with a bound on the wait for it
approval          a flow run that is suspended until a person has answered its gate
following         resumes suspended flow runs whose answer a command gave
cancellation      ends a flow run that is cancelled in Prefect
crash_loops       the bound on flow runs that crash and are run again by an automation
left_running      flow runs that Prefect shows as running though no process drives them
deployment_slots  who holds the slots of the deployments, and slots that nobody holds
endings           the decisions about a flow run's end, pure
states            the names of a flow run's last state
"""
