// Loaded before a process that a test has started: it ends when the test's own process is gone, however that came.
process.once('disconnect', () => process.exit(1))
