"""What there is, until it leaves: workers, apps, companies, what is granted of them, and their ledgers.

It imports `model` alone. It is changed by the fold; what is asked of an entity here follows from its own facts.
"""
