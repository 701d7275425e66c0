-- The logins of the demo, made once by the database's administrator after `poolkeeper migrate --apply`.
-- Tables are granted to nobody: a login may call the functions of its groups, for what its row in poolkeeper.access names.

CREATE ROLE demo_platform LOGIN PASSWORD {platform};
GRANT poolkeeper_worker, poolkeeper_operator TO demo_platform;
INSERT INTO poolkeeper.access (role) VALUES ('demo_platform');

CREATE ROLE demo_submitter LOGIN PASSWORD {submitter};
GRANT poolkeeper_submitter, poolkeeper_reader TO demo_submitter;
INSERT INTO poolkeeper.access (role, queues) VALUES ('demo_submitter', ARRAY['demo/agents']);
