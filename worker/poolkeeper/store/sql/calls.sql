-- The statements of the typed face (poolkeeper.store.calls), one for each function of the contract.

-- name: submit_many
SELECT * FROM poolkeeper.submit_many(%(queue)s, %(tasks)s::jsonb, %(notify)s)

-- name: register_session
SELECT * FROM poolkeeper.register_session(%(pool)s, %(queues)s::text[], %(types)s::text[], %(concurrency)s, %(info)s::jsonb,
                                          %(tenants)s::text[], %(tenants_except)s::text[])

-- name: turn
SELECT * FROM poolkeeper.turn(%(session)s, %(secret)s, %(turn)s, %(received)s, %(settles)s::jsonb, %(want)s, %(sweep)s, %(isolated)s, %(cursor)s::jsonb, %(slots)s, %(starts)s::jsonb, %(since)s, %(idle)s)

-- name: renew
SELECT * FROM poolkeeper.renew(%(session)s, %(secret)s, %(received)s, %(held)s::uuid[], %(stats)s::jsonb, %(complete)s)

-- name: accept_installation
SELECT poolkeeper.accept_installation(%(who)s, %(why)s) AS value

-- name: end_session
SELECT poolkeeper.end_session(%(session)s, %(secret)s) AS value

-- name: report_drain
SELECT poolkeeper.report_drain(%(session)s, %(secret)s, %(report)s::jsonb)

-- name: checkpoint
SELECT * FROM poolkeeper.checkpoint(%(task_id)s, %(token)s, %(value)s::jsonb, %(sequence)s, %(version)s)

-- name: succeed
SELECT * FROM poolkeeper.succeed(%(task_id)s, %(token)s, %(result)s::jsonb)

-- name: extend
SELECT * FROM poolkeeper.extend(%(task_id)s, %(token)s, %(by)s)

-- name: report_provider
SELECT * FROM poolkeeper.report_provider(%(task_id)s, %(token)s, %(name)s, %(status)s, %(retry_after)s, %(used)s::jsonb)

-- name: cancel
SELECT * FROM poolkeeper.cancel(%(task_id)s, %(who)s, %(why)s, %(seen_version)s)

-- name: requeue
SELECT * FROM poolkeeper.requeue(%(task_id)s, %(who)s, %(why)s, %(seen_version)s)

-- name: discard
SELECT * FROM poolkeeper.discard(%(task_id)s, %(who)s, %(why)s, %(seen_version)s)

-- name: task
SELECT * FROM poolkeeper.task_view(%(task_id)s)

-- name: timeline
SELECT * FROM poolkeeper.timeline(%(task_id)s)

-- name: dead_matching
SELECT * FROM poolkeeper.dead_matching(%(queue)s, %(filter)s::jsonb, %(cursor)s::jsonb, %(want)s, %(most)s)

-- name: requeue_matching
SELECT * FROM poolkeeper.requeue_matching(%(queue)s, %(filter)s::jsonb, %(who)s, %(why)s, %(cursor)s::jsonb, %(want)s, %(most)s)

-- name: discard_matching
SELECT * FROM poolkeeper.discard_matching(%(queue)s, %(filter)s::jsonb, %(who)s, %(why)s, %(cursor)s::jsonb, %(want)s, %(most)s)

-- name: dead_letters
SELECT * FROM poolkeeper.dead_letters(%(queue)s, %(limit)s)

-- name: queues
SELECT data FROM poolkeeper.queues()

-- name: apply_policy
SELECT * FROM poolkeeper.apply_policy(%(cluster)s, %(namespace_uid)s, %(namespace)s, %(name)s, %(spec)s::jsonb, %(who)s, %(adopt)s, %(term)s)

-- name: purge
SELECT * FROM poolkeeper.purge(%(cluster)s, %(namespace_uid)s, %(namespace)s, %(name)s, %(who)s, %(cursor)s::jsonb, %(most)s, %(term)s)

-- name: pause
SELECT * FROM poolkeeper.pause_queue(%(queue)s, %(paused)s, %(who)s)

-- name: set_schedule
SELECT * FROM poolkeeper.set_schedule(%(queue)s, %(name)s, %(schedule)s::jsonb, %(task)s::jsonb, %(who)s)

-- name: remove_schedule
SELECT * FROM poolkeeper.remove_schedule(%(queue)s, %(tenant)s, %(name)s)

-- name: pause_schedule
SELECT * FROM poolkeeper.pause_schedule(%(queue)s, %(tenant)s, %(name)s, %(paused)s)

-- name: run_schedule
SELECT * FROM poolkeeper.run_schedule(%(queue)s, %(tenant)s, %(name)s)

-- name: schedules
SELECT * FROM poolkeeper.schedules(%(queue)s, %(limit)s)

-- name: due_schedules
SELECT * FROM poolkeeper.due_schedules(%(queues)s::text[], %(most)s)

-- name: fire_schedules
SELECT * FROM poolkeeper.fire_schedules(%(plans)s::jsonb)

-- name: sweep
SELECT poolkeeper.sweep(%(most)s, %(since)s) AS value

-- name: maintain
SELECT * FROM poolkeeper.maintain(%(most)s)

-- name: installation
SELECT * FROM poolkeeper.installation()

-- name: stats
SELECT kind, data FROM poolkeeper.stats(%(cluster)s, %(position)s::jsonb)

-- name: set_pool
SELECT poolkeeper.set_pool(%(pool)s, %(max_running)s, %(term)s) AS value

-- name: set_providers
SELECT poolkeeper.set_providers(%(pool)s, %(providers)s::jsonb, %(term)s) AS value

-- name: mark_sessions
SELECT * FROM poolkeeper.mark_sessions(%(pool)s, %(pods)s::text[], %(draining)s, %(term)s)

-- name: tell_grace
SELECT poolkeeper.tell_grace(%(pool)s, %(uids)s::text[], %(seconds)s::double precision[], %(term)s) AS value

-- name: set_pool_login
SELECT poolkeeper.set_pool_login(%(pool)s, %(slot)s, %(verifier)s, %(queues)s::text[], %(tenants)s::text[], %(tenants_except)s::text[], %(term)s) AS value

-- name: pool_logins
SELECT * FROM poolkeeper.pool_logins(%(namespace)s, %(pool)s)

-- name: retire_pool_login
SELECT * FROM poolkeeper.retire_pool_login(%(pool)s, %(slot)s, %(term)s)

-- name: report_crashes
SELECT poolkeeper.report_crashes(%(pool)s, %(uids)s::text[], %(ended)s::timestamptz[], %(crashes)s::text[], %(term)s) AS value

-- name: keep_post
SELECT poolkeeper.keep_post(%(queue_id)s, %(number)s, %(news)s::jsonb, %(term)s) AS value

-- name: posts
SELECT * FROM poolkeeper.posts(%(queue_id)s, %(most)s)

-- name: post_taken
SELECT poolkeeper.post_taken(%(queue_id)s, %(number)s, %(term)s) AS value

-- name: record_decision
SELECT poolkeeper.record_decision(%(pool)s, %(decision)s::jsonb, %(term)s)

-- name: decisions
SELECT * FROM poolkeeper.decisions(%(pool)s, %(limit)s)

-- name: dead_batch
SELECT * FROM poolkeeper.dead_batch(%(queue_id)s, %(term)s)

-- name: dead_batch_announced
SELECT poolkeeper.dead_batch_announced(%(queue_id)s, %(number)s, %(term)s) AS value

-- name: lead
SELECT * FROM poolkeeper.lead(%(cluster)s, %(namespace)s, %(lease)s, %(epoch)s, %(holder)s)

-- name: resign
SELECT poolkeeper.resign(%(term)s) AS value

-- name: only_look
SELECT set_config('transaction_read_only', 'on', true) AS looks, set_config('statement_timeout', %(milliseconds)s::text || 'ms', true) AS lasts

-- name: audit_tasks
SELECT * FROM poolkeeper.audit_tasks(%(after)s, %(most)s)

-- name: audit_keys
SELECT * FROM poolkeeper.audit_keys(%(block)s, %(most)s)

-- name: audit_counts
SELECT * FROM poolkeeper.audit_counts(%(expired)s::jsonb)

-- name: doctor
SELECT poolkeeper.doctor() AS value

-- name: listen
LISTEN poolkeeper

-- name: backend
SELECT pg_backend_pid() AS value
