"""Peers at the best settings of their documentation, each a program of its own."""
