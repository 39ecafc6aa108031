// What a figure must be, and what we aim at. A figure without a target is there to explain those that have one.
export interface Target {
  figure: string
  better: 'less' | 'more'
  must: number
  aim: number
}

export const TARGETS: readonly Target[] = [
  { figure: 'throughput.workerCpuRatioToBare', better: 'less', must: 1.25, aim: 1 },
  { figure: 'throughput.jobsPerSRatioToBullmq', better: 'more', must: 0.8, aim: 1 },
  { figure: 'throughput.commitsPerJob', better: 'less', must: 6, aim: 4 },
  { figure: 'throughput.redisCommandsPerJob', better: 'less', must: 60, aim: 45 },
  { figure: 'streaming.cpuPerTokenRatioToBare', better: 'less', must: 0.6, aim: 0.3 },
  { figure: 'streaming.wallRatioToBare', better: 'less', must: 0.8, aim: 0.6 },
  { figure: 'streaming.eventLoopDelayP99Ms', better: 'less', must: 200, aim: 50 },
  { figure: 'overhead.overheadRatioToBullmq', better: 'less', must: 3, aim: 1.5 },
  { figure: 'abort.p50Ms', better: 'less', must: 8, aim: 4 },
  { figure: 'abort.p99Ms', better: 'less', must: 60, aim: 30 },
  { figure: 'watch.aboveBatchingP50Ms', better: 'less', must: 20, aim: 5 },
  { figure: 'crash.recoveryStartsMs', better: 'less', must: 3_000, aim: 1_500 },
  { figure: 'crash.callsRepeatedBeyondThoseInFlight', better: 'less', must: 0, aim: 0 },
  { figure: 'growth.throughputRatio', better: 'more', must: 0.9, aim: 0.97 },
  { figure: 'growth.spawnRatio', better: 'more', must: 0.9, aim: 0.97 },
]

export function targetOf(workload: string, figure: string): Target | undefined {
  return TARGETS.find((target) => target.figure === `${workload}.${figure}`)
}

export type Verdict = 'aim reached' | 'must reached' | 'MISSED'

export function verdictOn({ better, must, aim }: Target, value: number): Verdict {
  const reaches = (bound: number) => (better === 'less' ? value <= bound : value >= bound)
  if (reaches(aim)) return 'aim reached'
  return reaches(must) ? 'must reached' : 'MISSED'
}
