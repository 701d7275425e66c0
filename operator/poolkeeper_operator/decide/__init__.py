"""Pure decisions: from what was observed to what is wanted.

Guarantees: every function here is total and depends on its arguments alone (no clock, no randomness, no log, no I/O), and every
answer is a frozen value that carries its reason and a sentence. Reading and writing the world is `observe/` and `act/`.
"""
