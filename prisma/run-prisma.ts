import path from 'node:path'
import { program } from 'commander'
import { deployMigrations } from './deploy-migrations.ts'
import { generateClient } from './generate-client.ts'
import { projectFolder, runPrisma } from './prisma-cli.ts'
import { checkMigrations, writeMigration } from './write-migration.ts'

program.name('run-prisma').description("Prisma's official CLI on an engine from npm (schema-engine.mjs).")

program.command('generate').description('write the database client; needs no database').action(generateClient)

program
  .command('deploy')
  .description('bring the database of DATABASE_URL to the last migration; safe to run from several processes at once')
  .action(async () => print(await deployMigrations(process.env['DATABASE_URL'] ?? missingUrl())))

program
  .command('status')
  .description('say which migrations the database of DATABASE_URL has')
  .action(() => pass(['migrate', 'status']))

program
  .command('migration <name>')
  .description('write the migration from the last one to prisma/schema.prisma; needs no database')
  .action(async (name: string) => print(`Wrote ${path.relative(projectFolder, await writeMigration(name))}\n`))

program
  .command('check')
  .description('fail when prisma/schema.prisma holds what no migration makes')
  .action(checkMigrations)

program
  .command('cli [arguments...]')
  .description('run any other command of the CLI, like: cli migrate resolve --rolled-back <migration>')
  .allowUnknownOption()
  .action(pass)

try {
  await program.parseAsync()
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = 1
}

async function pass(args: string[]) {
  print((await runPrisma(args)).stdout)
}

function print(output: string) {
  process.stdout.write(output)
}

function missingUrl(): never {
  throw new Error('DATABASE_URL is not set: it says which database to migrate.')
}
