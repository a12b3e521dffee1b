"""evertrain for programs without torch: work that needs it runs in processes of its own."""
