"""Every order of submissions, ends and times of small clusters, on the real turn (semantics H9)."""
