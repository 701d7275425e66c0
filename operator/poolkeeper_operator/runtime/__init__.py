"""The process: kopf wiring, work queue, checks at start, health. Reconciling is level-triggered; kopf only informs."""
