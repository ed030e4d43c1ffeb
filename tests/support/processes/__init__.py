"""Scripts in processes of their own, and what processes leave behind."""
