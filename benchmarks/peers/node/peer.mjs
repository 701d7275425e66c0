// What every peer does when it is asked: one verb, then the DSN and numbers; the answer is one line of JSON.
//
// A peer is {install, bulk, submit, work}: `work(dsn, handler)` starts one worker and answers how to stop it, `ended(client)`
// counts what the database calls ended. Times are taken here, in the same way for each.
import { readFileSync } from "node:fs";
import pg from "pg";

export const BULK = 10_000;

export function version(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

export async function main(peer) {
  const [verb, dsn, ...rest] = process.argv.slice(2);
  const numbers = rest.map(Number);
  const answer = await verbs[verb](peer, dsn, ...numbers);
  console.log(JSON.stringify(answer ?? {}));
  process.exit(0);
}

const verbs = {
  about: async (peer) => ({ version: peer.version, settings: peer.settings }),
  install: async (peer, dsn) => peer.install(dsn),

  // seconds to submit `count` tasks in calls of BULK
  bulk: async (peer, dsn, count) => {
    const send = await peer.bulk(dsn);
    const began = process.hrtime.bigint();
    for (let first = 0; first < count; first += BULK) {
      await send(Array.from({ length: Math.min(BULK, count - first) }, (_, at) => ({ n: first + at })));
    }
    return { seconds: since(began) };
  },

  // seconds to submit `count` tasks one by one over `connections`
  submit: async (peer, dsn, count, connections) => {
    const send = await peer.submit(dsn, connections);
    await send({ n: -1 });
    let next = 0;
    const began = process.hrtime.bigint();
    await Promise.all(Array.from({ length: connections }, async () => {
      while (next < count) await send({ n: next++ });
    }));
    return { seconds: since(began) };
  },

  // seconds from the first handler to the last settle that the database shows
  drain: async (peer, dsn, count) => {
    let began;
    let done = 0;
    let all;
    const finished = new Promise((resolve) => { all = resolve; });
    const look = new pg.Client({ connectionString: dsn });
    await look.connect();
    const stop = await peer.work(dsn, () => {
      began ??= process.hrtime.bigint();
      if (++done === count) all();
    });
    await finished;
    while (await peer.left(look) > 0) await new Promise((resolve) => setTimeout(resolve, 2));
    const seconds = since(began);
    await stop();
    return { seconds, ended: done, left: await peer.left(look) };
  },

  // milliseconds from before the submit to the start of the handler, `rate` a second
  pickup: async (peer, dsn, rate, seconds) => {
    const waits = [];
    const stop = await peer.work(dsn, (payload) => { waits.push(Number(process.hrtime.bigint() - BigInt(payload.at)) / 1e6); });
    const send = await peer.submit(dsn, 2);
    await new Promise((resolve) => setTimeout(resolve, 2000));
    const began = performance.now();
    const sent = [];
    for (let n = 0; n < rate * seconds; n++) {
      const wait = began + (n * 1000) / rate - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      sent.push(send({ at: process.hrtime.bigint().toString() }));
    }
    await Promise.all(sent);
    while (waits.length < sent.length) await new Promise((resolve) => setTimeout(resolve, 20));
    await stop();
    return { waits };
  },
};

function since(began) {
  return Number(process.hrtime.bigint() - began) / 1e9;
}
