import { statSync } from 'node:fs'
import path from 'node:path'
import { projectFolder, runPrisma, schemaFile } from './prisma-cli.ts'

const clientFile = path.join(projectFolder, 'packages', 'shared', 'src', 'db', 'generated', 'client.ts')

/** Writes the database client for prisma/schema.prisma to packages/shared/src/db/generated. Needs no database. */
export async function generateClient() {
  await runPrisma(['generate'])
}

/** Does so only when the schema is newer than the client, as after a `git pull`. */
export async function generateClientIfStale() {
  if (modifiedAt(clientFile) < modifiedAt(schemaFile)) await generateClient()
}

function modifiedAt(file: string) {
  return statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0
}
