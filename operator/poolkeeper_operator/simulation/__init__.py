"""Pools in a model world: what a policy would do with a given load. Pure; the decisions are the operator's own."""
