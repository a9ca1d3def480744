"""What is wrong with a cluster, told once: the conditions, and what watches for them: metrics, alerts, the auditor.

It may import the scheduler, `recovery` and `witness`. How a condition is shown or sent to people who type belongs to
`fairlog.cli`, who may read it to `fairlog.api`.
"""
