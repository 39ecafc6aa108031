import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    // Unit tests stand beside the code; integration and system tests, on real services, in each package's test folder.
    include: [
      'packages/*/src/**/*.test.ts',
      'packages/*/test/**/*.test.ts',
      'dev/**/*.test.ts',
      'examples/**/*.test.ts',
      'prisma/**/*.test.ts',
      'bench/src/**/*.test.ts',
    ],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Each worker starts processes of its own; more of them than cores only makes them wait for each other.
    maxWorkers: 2,
    reporters: ['default', ['json', { outputFile: '.offshoot/test-report.json' }]],
    coverage: {
      provider: 'v8',
      include: ['packages/*/src/**'],
      exclude: ['**/generated/**', '**/*.test.ts', 'packages/*/src/main.ts'],
      reporter: ['text-summary', 'json-summary'],
      reportsDirectory: '.offshoot/coverage',
      thresholds: { lines: 85 },
    },
  },
})
