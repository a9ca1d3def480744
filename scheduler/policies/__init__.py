"""Who goes next: which company, which of its users, which of the user's apps. Each file holds a table of sort keys."""
