-- Locks users, making the rows of new ones, and counts their unfinished jobs: lock first, look second, in one round trip.
-- Each statement of a volatile function sees what was committed when that statement began. With `only_free` those that
-- somebody else holds are left out instead of waited for.
CREATE FUNCTION "offshoot"."lock_users"(users text[], only_free boolean) RETURNS TABLE ("userId" text, "activeJobs" int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  held text[];
BEGIN
  INSERT INTO "offshoot"."User" ("id") SELECT one FROM unnest(users) one ORDER BY one ON CONFLICT DO NOTHING;
  IF only_free THEN
    SELECT array_agg(free."id") INTO held FROM (
      SELECT known."id" FROM "offshoot"."User" known WHERE known."id" = ANY (users) ORDER BY known."id"
      FOR UPDATE SKIP LOCKED) free;
  ELSE
    SELECT array_agg(free."id") INTO held FROM (
      SELECT known."id" FROM "offshoot"."User" known WHERE known."id" = ANY (users) ORDER BY known."id"
      FOR UPDATE) free;
  END IF;
  RETURN QUERY
    SELECT one, (SELECT count(*)::int FROM "offshoot"."AgentJob" job
      WHERE job."ownerId" = one AND job."state" IN ('pending', 'running'))
    FROM unnest(held) one;
END
$$;
