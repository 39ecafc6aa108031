# One file, three targets: migrate, worker, api (the last one is the default).
#   docker build --target worker --tag offshoot-worker .
# The programs run as they are written: Node 24 strips the types. Node is the first process of each container, so that
# SIGTERM reaches it.

FROM node:24-bookworm-slim AS source
WORKDIR /app
RUN npm install --global --no-fund --no-audit pnpm@12.21.0
COPY package.json pnpm-lock.yaml pnpm-workspace.yaml ./
COPY packages/api/package.json packages/api/
COPY packages/shared/package.json packages/shared/
COPY packages/worker/package.json packages/worker/
COPY examples/package.json examples/
COPY testing/package.json testing/

# What Prisma's CLI and its WebAssembly engine need: the dependencies of the root package.
FROM source AS prisma
RUN pnpm install --frozen-lockfile --ignore-scripts --no-optional --filter offshoot
COPY prisma.config.ts ./
COPY prisma prisma
RUN node prisma/run-prisma.ts generate

# What the programs need at run time.
FROM source AS modules
RUN pnpm install --prod --frozen-lockfile --ignore-scripts \
  --filter @offshoot/api --filter @offshoot/worker --filter @offshoot/shared --filter @offshoot/examples

# Brings the database of DATABASE_URL to the last migration, and ends.
FROM prisma AS migrate
USER node
CMD ["node", "prisma/run-prisma.ts", "deploy"]

FROM node:24-bookworm-slim AS runtime
WORKDIR /app
ENV NODE_ENV=production
COPY --from=modules /app ./
COPY packages packages
COPY --from=prisma /app/packages/shared/src/db/generated packages/shared/src/db/generated
# For create-api-key.ts and, with OFFSHOOT_CONFIG, the config module there.
COPY examples examples
USER node

FROM runtime AS worker
# A larger young generation, and one helper thread instead of four: a worker is for one core (docs/operations/capacity.md).
CMD ["node", "--min-semi-space-size=64", "--max-semi-space-size=64", "--v8-pool-size=1", "packages/worker/src/main.ts"]

FROM runtime AS api
ENV API_HOST=0.0.0.0
EXPOSE 3000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["node", "--eval", "fetch('http://127.0.0.1:' + (process.env.API_PORT || 3000) + '/readyz').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
CMD ["node", "packages/api/src/main.ts"]
