"""What answers for logs before the third edition of the rules of sharing: their rules and their audit, as they were.

Nothing else may decide by it, and it is not developed: it is here so that such a log can still be audited. It may
import `scheduler.model`, `scheduler.store` and `scheduler.service`, and nothing of the rules in force.
"""
