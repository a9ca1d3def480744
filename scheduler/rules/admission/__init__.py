"""Who enters next: queues, quotas and the policies for companies, users and apps. Placement stays out."""
