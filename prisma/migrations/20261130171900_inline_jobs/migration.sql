-- What Prisma's schema cannot say: the jobs of an inline process are asked for at each of its heartbeats.
CREATE INDEX "AgentJob_live_inline" ON "offshoot"."AgentJob" ("workerId") WHERE "runner" = 'inline' AND "state" IN ('pending', 'running');
