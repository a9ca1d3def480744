"""Which app enters next: queues, quotas and the policies for companies, users and apps.

It may import `model` and the rest of `rules`, but not `placement`. Where an app runs does not belong here.
"""
