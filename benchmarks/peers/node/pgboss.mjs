// pg-boss: batches that are fetched without a pause while they come back full, NOTIFY on.
import { PgBoss } from "pg-boss";
import { main, version } from "./peer.mjs";

const options = { batchSize: 500, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };

async function start(dsn, max = 10) {
  const boss = new PgBoss({ connectionString: dsn, max, useListenNotify: true, supervise: false, schedule: false });
  boss.on("error", (error) => { throw error; });
  await boss.start();
  return boss;
}

await main({
  version: version("pg-boss"),
  settings: { ...options, useListenNotify: true },
  install: async (dsn) => {
    const boss = await start(dsn);
    await boss.createQueue("noop", { notify: true });
    await boss.stop({ graceful: false });
  },
  bulk: async (dsn) => {
    const boss = await start(dsn);
    return (payloads) => boss.insert("noop", payloads.map((data) => ({ data })));
  },
  submit: async (dsn, connections) => {
    const boss = await start(dsn, connections);
    return (payload) => boss.send("noop", payload);
  },
  work: async (dsn, handler) => {
    const boss = await start(dsn);
    await boss.work("noop", options, async (jobs) => { for (const job of jobs) handler(job.data); });
    return () => boss.stop({ graceful: false });
  },
  left: async (client) => (await client.query("SELECT count(*)::int AS n FROM (SELECT FROM pgboss.job WHERE name = 'noop' AND state < 'completed' LIMIT 1) AS x")).rows[0].n,
});
