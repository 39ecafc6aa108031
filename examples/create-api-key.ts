// Makes an API key and prints it; the key is stored only as a hash. Needs DATABASE_URL.
// node examples/create-api-key.ts <userId> [--admin | --service]
import { parseArgs } from 'node:util'
import { openDatabase } from '@offshoot/shared/db/database'
import { createApiKey, ensureUser } from '@offshoot/shared/db/users'

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { admin: { type: 'boolean' }, service: { type: 'boolean' } },
})
const [userId] = positionals
const databaseUrl = process.env['DATABASE_URL']
if (userId === undefined || databaseUrl === undefined) {
  throw new Error('Usage: DATABASE_URL=… node examples/create-api-key.ts <userId> [--admin | --service]')
}

const database = openDatabase({ databaseUrl, poolSize: 1, applicationName: 'offshoot-create-api-key' })
await ensureUser(database, userId)
if (values.admin === true) await database.user.update({ where: { id: userId }, data: { admin: true } })
console.log(await createApiKey(database, userId, values.service === true ? 'service' : 'user'))
await database.$disconnect()
