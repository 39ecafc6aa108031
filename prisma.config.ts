import { defineConfig } from 'prisma/config'

// Read by Prisma's CLI, which prisma/run-prisma.ts starts. Generating the client needs no database.
export default defineConfig({
  schema: 'prisma/schema.prisma',
  migrations: { path: 'prisma/migrations' },
  datasource: { url: process.env['DATABASE_URL'] ?? '' },
})
