"""Which app enters next: queues, quotas and the policies for companies, users and apps.

It imports `entities`. Where an app runs does not belong here.
"""
