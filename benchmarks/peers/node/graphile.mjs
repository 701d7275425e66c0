// graphile-worker, with the batches that its page on performance recommends for small fast tasks.
import { makeWorkerUtils, run, Logger } from "graphile-worker";
import pg from "pg";
import { main, version } from "./peer.mjs";

const logger = new Logger(() => () => {});
const worker = { concurrentJobs: 24, maxPoolSize: 26, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

await main({
  version: version("graphile-worker"),
  settings: worker,
  install: async (dsn) => {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    await utils.migrate();
    await utils.release();
  },
  bulk: async (dsn) => {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    return (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: "noop", payload })));
  },
  submit: async (dsn, connections) => {
    const pgPool = new pg.Pool({ connectionString: dsn, max: connections });
    pgPool.on("error", (error) => { throw error; });
    const utils = await makeWorkerUtils({ pgPool, logger });
    return (payload) => utils.addJob("noop", payload);
  },
  work: async (dsn, handler) => {
    const runner = await run({
      logger,
      taskList: { noop: async (payload) => handler(payload) },
      preset: { worker: { connectionString: dsn, logger, ...worker } },
    });
    return () => runner.stop();
  },
  left: async (client) => (await client.query("SELECT count(*)::int AS n FROM (SELECT FROM graphile_worker._private_jobs LIMIT 1) AS x")).rows[0].n,
});
