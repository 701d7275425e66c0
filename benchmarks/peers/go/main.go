// River: one worker with many goroutines, the cooldown between fetches at its least, COPY for bulk.
//
// What it does when asked, and how it answers, is as in ../node/peer.mjs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const bulk = 10_000

var config = river.QueueConfig{MaxWorkers: 2_000, FetchCooldown: time.Millisecond, FetchPollInterval: 100 * time.Millisecond}

var began = time.Now() // of this process; monotonic

type noop struct {
	N  int   `json:"n"`
	At int64 `json:"at"`
}

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	handler func(noop)
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	w.handler(job.Args)
	return nil
}

func main() {
	ctx := context.Background()
	verb := os.Args[1]
	if verb == "about" {
		say(map[string]any{"version": version(), "settings": map[string]any{
			"MaxWorkers": config.MaxWorkers, "FetchCooldown": config.FetchCooldown.String(), "bulk": "InsertManyFast"}})
		return
	}
	numbers := make([]int, 0, 2)
	for _, each := range os.Args[3:] {
		numbers = append(numbers, must(strconv.Atoi(each)))
	}
	pool := open(ctx, os.Args[2], 10)
	switch verb {
	case "install":
		must(must(rivermigrate.New(riverpgxv5.New(pool), nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
		say(map[string]any{})
	case "bulk":
		say(map[string]any{"seconds": fill(ctx, client(pool, nil), numbers[0])})
	case "submit":
		say(map[string]any{"seconds": submit(ctx, os.Args[2], numbers[0], numbers[1])})
	case "drain":
		drain(ctx, pool, numbers[0])
	case "pickup":
		pickup(ctx, pool, numbers[0], numbers[1])
	}
}

func fill(ctx context.Context, inserts *river.Client[pgx.Tx], count int) float64 {
	start := time.Now()
	for first := 0; first < count; first += bulk {
		params := make([]river.InsertManyParams, 0, bulk)
		for n := first; n < min(first+bulk, count); n++ {
			params = append(params, river.InsertManyParams{Args: noop{N: n}})
		}
		must(inserts.InsertManyFast(ctx, params))
	}
	return time.Since(start).Seconds()
}

func submit(ctx context.Context, dsn string, count, connections int) float64 {
	inserts := client(open(ctx, dsn, connections), nil)
	must(inserts.Insert(ctx, noop{N: -1}, nil))
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range connections {
		all.Go(func() {
			for n := next.Add(1); n <= int64(count); n = next.Add(1) {
				must(inserts.Insert(ctx, noop{N: int(n)}, nil))
			}
		})
	}
	all.Wait()
	return time.Since(start).Seconds()
}

func drain(ctx context.Context, pool *pgxpool.Pool, count int) {
	var first, done atomic.Int64
	finished := make(chan struct{})
	works := client(pool, func(noop) {
		first.CompareAndSwap(0, int64(time.Since(began)))
		if done.Add(1) == int64(count) {
			close(finished)
		}
	})
	check(works.Start(ctx))
	<-finished
	for left(ctx, pool) > 0 {
		time.Sleep(2 * time.Millisecond)
	}
	seconds := (time.Since(began) - time.Duration(first.Load())).Seconds()
	check(works.Stop(ctx))
	say(map[string]any{"seconds": seconds, "ended": done.Load(), "left": left(ctx, pool)})
}

func pickup(ctx context.Context, pool *pgxpool.Pool, rate, seconds int) {
	waits := make(chan float64, rate*seconds)
	works := client(pool, func(args noop) { waits <- float64(int64(time.Since(began))-args.At) / 1e6 })
	check(works.Start(ctx))
	time.Sleep(2 * time.Second)
	start := time.Now()
	for n := range rate * seconds {
		time.Sleep(time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		go func() { must(works.Insert(ctx, noop{At: int64(time.Since(began))}, nil)) }()
	}
	found := make([]float64, 0, rate*seconds)
	for range rate * seconds {
		found = append(found, <-waits)
	}
	check(works.Stop(ctx))
	say(map[string]any{"waits": found})
}

func left(ctx context.Context, pool *pgxpool.Pool) (n int) {
	check(pool.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM river_job WHERE state <> 'completed' LIMIT 1) AS x").Scan(&n))
	return n
}

func client(pool *pgxpool.Pool, handler func(noop)) *river.Client[pgx.Tx] {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{handler: handler})
	settings := &river.Config{Workers: workers}
	if handler != nil {
		settings.Queues = map[string]river.QueueConfig{river.QueueDefault: config}
	}
	return must(river.NewClient(riverpgxv5.New(pool), settings))
}

func open(ctx context.Context, dsn string, most int) *pgxpool.Pool {
	settings := must(pgxpool.ParseConfig(dsn))
	settings.MaxConns = int32(most)
	return must(pgxpool.NewWithConfig(ctx, settings))
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == "github.com/riverqueue/river" {
			return each.Version
		}
	}
	return "?"
}

func say(answer any) { fmt.Println(string(must(json.Marshal(answer)))) }

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
