"""A whole store at a glance: how things stand, what is watched, who read whom, what was promised."""
