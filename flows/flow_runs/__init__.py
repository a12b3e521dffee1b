"""Flow runs in Prefect: how they wait, end, crash, are cancelled, or lose their process."""
