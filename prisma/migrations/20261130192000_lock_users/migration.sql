-- Locks users, making the rows of new ones, and counts their unfinished jobs: lock first, look second, in one round trip.
-- Each statement of a volatile function sees what was committed when that statement began.
CREATE FUNCTION "offshoot"."lock_users"(users text[]) RETURNS TABLE ("userId" text, "activeJobs" int)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO "offshoot"."User" ("id") SELECT one FROM unnest(users) one ORDER BY one ON CONFLICT DO NOTHING;
  PERFORM 1 FROM "offshoot"."User" known WHERE known."id" = ANY (users) ORDER BY known."id" FOR UPDATE;
  RETURN QUERY
    SELECT one, (SELECT count(*)::int FROM "offshoot"."AgentJob" job
      WHERE job."ownerId" = one AND job."state" IN ('pending', 'running'))
    FROM unnest(users) one;
END
$$;
