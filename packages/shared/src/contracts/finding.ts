// What the reconciler can find. Each finding is counted (offshoot_reconciler_findings_total) and, where it is about a
// job, is a line in that job's history: the count is taken from the lines that were committed.

/** Findings that stand in the history of the job that they are about. */
export const JOB_FINDINGS = [
  /** A lost worker had held the job; it goes to another one, or ends when it was an inline one. */
  'job_of_lost_worker',
  /** Redis did not have the delivery of a pending job any more. */
  'lost_delivery',
  /** The time has come to try a step again: the ordinary end of that wait. */
  'retry_due',
  /** A wait for something else was over by its time. */
  'overdue_wait',
  /** No child that a job waits for was live, and nobody had woken it. */
  'lost_wake',
  /** A job that no worker held was past its deadline. */
  'deadline',
  /** No worker had taken a job within its queue-time limit. */
  'queue_time',
  /** Somebody wanted the end of a job that no worker held. */
  'unheld_abort',
  /** A job had to end a lock's length ago, and the worker that held it could not end it. */
  'stuck_run',
  /** An outbox entry was told that its writer had not told in time. */
  'outbox_due',
] as const
export type JobFinding = (typeof JOB_FINDINGS)[number]

/** The others are lines of the log: they are about no job, or about one that is gone with its history. */
export const FINDINGS = [...JOB_FINDINGS, 'lost_worker', 'removed_by_retention'] as const
export type Finding = (typeof FINDINGS)[number]
