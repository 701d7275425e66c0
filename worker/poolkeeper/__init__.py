"""Durable tasks on Postgres: submit, write handlers, work. What is imported here is public, nothing else is."""
