"""The operator: turns TaskQueue, WorkerPool, ProviderQuota and Database resources into workers and keeps them right."""
