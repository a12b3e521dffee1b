"""Artifacts of a run in Prefect's UI.

artifacts         the artifacts of a run: a table of its checkpoints, a report with curves
page              the outcome of a run as a page, beside the figures of the previous run
checkpoints       the checkpoints that the best one was chosen from
gate_table        the gate's outcome as a table, also for who has to approve it
numbers           numbers as they are shown
escaped_markdown  text of others in Markdown: nothing of it is interpreted
"""
