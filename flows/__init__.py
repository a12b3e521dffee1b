"""Prefect flows, which order the tasks, and the command line in front of them."""

from train_core.search_path import put_users_folders_last

# IMPORTANT: before the other modules here are imported, with pydantic and Prefect. The command has
# the folders of PYTHONPATH at the beginning, and Prefect puts the deployment's folder there.
put_users_folders_last()
