-- AlterTable
ALTER TABLE "offshoot"."AgentJob" ADD COLUMN     "stepRetries" INTEGER NOT NULL DEFAULT 0;

-- What retention looks for: the roots that ended longest ago, and the outbox entries that were told.
CREATE INDEX "AgentJob_root_finished" ON "offshoot"."AgentJob" ("finishedAt") WHERE "id" = "rootJobId";
CREATE INDEX "Outbox_done" ON "offshoot"."Outbox" ("doneAt") WHERE "doneAt" IS NOT NULL;
