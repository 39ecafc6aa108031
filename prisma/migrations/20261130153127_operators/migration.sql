-- AlterTable
ALTER TABLE "offshoot"."AgentJob" ADD COLUMN     "askedAt" TIMESTAMPTZ(3);

-- CreateTable
CREATE TABLE "offshoot"."JobTally" (
    "id" BIGSERIAL NOT NULL,
    "jobs" BIGINT NOT NULL,

    CONSTRAINT "JobTally_pkey" PRIMARY KEY ("id")
);

-- Every statement that inserts or deletes jobs leaves in JobTally how many. The jobs that are there already come last:
-- this migration has had the table for itself since its first statement.
CREATE FUNCTION "offshoot"."tally_jobs"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO "offshoot"."JobTally" ("jobs") SELECT count(*) FROM changed HAVING count(*) > 0;
  ELSE
    INSERT INTO "offshoot"."JobTally" ("jobs") SELECT -count(*) FROM changed HAVING count(*) > 0;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER "AgentJob_inserted" AFTER INSERT ON "offshoot"."AgentJob"
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION "offshoot"."tally_jobs"();
CREATE TRIGGER "AgentJob_deleted" AFTER DELETE ON "offshoot"."AgentJob"
  REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION "offshoot"."tally_jobs"();
INSERT INTO "offshoot"."JobTally" ("jobs") SELECT count(*) FROM "offshoot"."AgentJob";

-- Which deliveries Redis is asked about next. It takes the place of an index on "deliveredAt" alone.
CREATE INDEX "AgentJob_pending_asked" ON "offshoot"."AgentJob" (greatest("deliveredAt", "askedAt")) WHERE "state" = 'pending';
DROP INDEX "offshoot"."AgentJob_pending_delivery";
-- The dead letters, newest first.
CREATE INDEX "Outbox_dead" ON "offshoot"."Outbox" ("id") WHERE "deadAt" IS NOT NULL AND "doneAt" IS NULL;
