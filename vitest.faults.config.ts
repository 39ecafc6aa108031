// `pnpm test:faults`: whole fleets of real processes, killed, frozen, redeployed and cut off. Each scenario has a stage of
// its own and most of the machine, so they run one after the other; together they may take at most 10 minutes (.ci/summary.ts).
import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['faults/**/*.test.ts'],
    testTimeout: 120_000,
    hookTimeout: 60_000,
    fileParallelism: false,
    reporters: ['default', ['json', { outputFile: '.offshoot/faults-report.json' }]],
  },
})
