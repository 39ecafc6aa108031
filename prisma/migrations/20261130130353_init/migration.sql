-- CreateSchema
CREATE SCHEMA IF NOT EXISTS "offshoot";

-- CreateEnum
CREATE TYPE "offshoot"."JobState" AS ENUM ('pending', 'running', 'completed', 'failed', 'aborted');

-- CreateEnum
CREATE TYPE "offshoot"."WaitingOn" AS ENUM ('children', 'inbox', 'retry');

-- CreateEnum
CREATE TYPE "offshoot"."JobMode" AS ENUM ('turn', 'sync', 'async');

-- CreateEnum
CREATE TYPE "offshoot"."Grant" AS ENUM ('self', 'context', 'delegate', 'admin');

-- CreateEnum
CREATE TYPE "offshoot"."Steers" AS ENUM ('queue', 'forward');

-- CreateEnum
CREATE TYPE "offshoot"."OnParentEnd" AS ENUM ('end', 'continue');

-- CreateEnum
CREATE TYPE "offshoot"."Runner" AS ENUM ('queue', 'inline');

-- CreateEnum
CREATE TYPE "offshoot"."ApiKeyKind" AS ENUM ('user', 'service');

-- CreateEnum
CREATE TYPE "offshoot"."MessageRole" AS ENUM ('user', 'assistant');

-- CreateEnum
CREATE TYPE "offshoot"."InboxKind" AS ENUM ('steer', 'childOutcome', 'layer');

-- CreateEnum
CREATE TYPE "offshoot"."OutboxKind" AS ENUM ('delivery', 'removal', 'ended', 'completionEvent');

-- CreateTable
CREATE TABLE "offshoot"."User" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL DEFAULT '',
    "admin" BOOLEAN NOT NULL DEFAULT false,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT "User_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."UserDelegate" (
    "userId" TEXT NOT NULL,
    "delegateUserId" TEXT NOT NULL,

    CONSTRAINT "UserDelegate_pkey" PRIMARY KEY ("userId","delegateUserId")
);

-- CreateTable
CREATE TABLE "offshoot"."ApiKey" (
    "hash" TEXT NOT NULL,
    "userId" TEXT NOT NULL,
    "kind" "offshoot"."ApiKeyKind" NOT NULL DEFAULT 'user',
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "lastUsedAt" TIMESTAMPTZ(3),
    "revokedAt" TIMESTAMPTZ(3),

    CONSTRAINT "ApiKey_pkey" PRIMARY KEY ("hash")
);

-- CreateTable
CREATE TABLE "offshoot"."Bot" (
    "id" TEXT NOT NULL,
    "group" TEXT NOT NULL,
    "handle" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "integration" TEXT NOT NULL,
    "modelName" TEXT NOT NULL,
    "systemPrompt" TEXT NOT NULL DEFAULT '',
    "childPrompts" JSONB,
    "temperature" DOUBLE PRECISION,
    "reasoningEffort" TEXT,
    "verbosity" TEXT,
    "serviceTier" TEXT,
    "storeResponses" BOOLEAN NOT NULL DEFAULT false,
    "toolNames" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "mcpServers" JSONB NOT NULL DEFAULT '[]',
    "layers" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "runner" "offshoot"."Runner",
    "lane" TEXT NOT NULL DEFAULT 'default',
    "ownerId" TEXT,
    "version" INTEGER NOT NULL DEFAULT 1,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "updatedAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT "Bot_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."Convo" (
    "id" TEXT NOT NULL,
    "botId" TEXT NOT NULL,
    "botLabel" TEXT NOT NULL,
    "ownerId" TEXT NOT NULL,
    "spaceId" TEXT,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT "Convo_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."AiMessage" (
    "id" TEXT NOT NULL,
    "convoId" TEXT NOT NULL,
    "ownerId" TEXT NOT NULL,
    "seq" INTEGER NOT NULL,
    "role" "offshoot"."MessageRole" NOT NULL,
    "parts" JSONB NOT NULL,
    "metadata" JSONB,
    "usage" JSONB,
    "jobId" TEXT,
    "clientMessageId" TEXT,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT "AiMessage_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."AgentTree" (
    "rootJobId" TEXT NOT NULL,
    "jobs" INTEGER NOT NULL DEFAULT 0,
    "spentTokens" BIGINT NOT NULL DEFAULT 0,
    "spentCostMicroUsd" BIGINT NOT NULL DEFAULT 0,
    "reservedTokens" BIGINT NOT NULL DEFAULT 0,
    "reservedCostMicroUsd" BIGINT NOT NULL DEFAULT 0,
    "maxTotalTokens" BIGINT,
    "maxCostMicroUsd" BIGINT,

    CONSTRAINT "AgentTree_pkey" PRIMARY KEY ("rootJobId")
);

-- CreateTable
CREATE TABLE "offshoot"."AgentJob" (
    "id" TEXT NOT NULL,
    "botId" TEXT NOT NULL,
    "botLabel" TEXT NOT NULL,
    "botRef" JSONB NOT NULL,
    "botSnapshot" JSONB NOT NULL,
    "ownerId" TEXT NOT NULL,
    "triggeredById" TEXT NOT NULL,
    "triggeredByIds" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "grant" "offshoot"."Grant" NOT NULL,
    "delegateUserIds" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "convoId" TEXT NOT NULL,
    "parentConvoId" TEXT,
    "parentJobId" TEXT,
    "parentStep" INTEGER,
    "parentToolCallId" TEXT,
    "rootJobId" TEXT NOT NULL,
    "ancestorIds" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "depth" INTEGER NOT NULL,
    "tags" JSONB NOT NULL DEFAULT '{}',
    "mode" "offshoot"."JobMode" NOT NULL,
    "inputMessage" TEXT NOT NULL,
    "inputSeq" INTEGER NOT NULL,
    "overrides" JSONB NOT NULL DEFAULT '{}',
    "toolNames" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "maxSteps" INTEGER NOT NULL,
    "layers" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "steers" "offshoot"."Steers" NOT NULL DEFAULT 'queue',
    "notifyParent" BOOLEAN NOT NULL DEFAULT false,
    "wakeIdleParent" BOOLEAN NOT NULL DEFAULT false,
    "onParentEnd" "offshoot"."OnParentEnd" NOT NULL DEFAULT 'end',
    "runner" "offshoot"."Runner" NOT NULL DEFAULT 'queue',
    "lane" TEXT NOT NULL DEFAULT 'default',
    "priority" INTEGER NOT NULL,
    "timeoutMs" INTEGER NOT NULL,
    "queueTimeoutMs" INTEGER,
    "parkTimeoutMs" INTEGER,
    "maxTotalTokens" BIGINT,
    "maxCostMicroUsd" BIGINT,
    "completionEventName" TEXT,
    "completionEventData" JSONB,
    "completionEventFired" BOOLEAN NOT NULL DEFAULT false,
    "idempotencyKey" TEXT,
    "requestHash" TEXT,
    "traceparent" TEXT,
    "state" "offshoot"."JobState" NOT NULL DEFAULT 'pending',
    "reason" TEXT,
    "waitingOn" "offshoot"."WaitingOn",
    "waitUntil" TIMESTAMPTZ(3),
    "generation" INTEGER NOT NULL DEFAULT 1,
    "attempt" INTEGER NOT NULL DEFAULT 0,
    "crashes" INTEGER NOT NULL DEFAULT 0,
    "claimToken" TEXT,
    "workerId" TEXT,
    "deliverySeq" INTEGER NOT NULL DEFAULT 1,
    "deliveredAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "deadlineAt" TIMESTAMPTZ(3) NOT NULL,
    "abortRequestedAt" TIMESTAMPTZ(3),
    "abortRequestedBy" TEXT,
    "abortReason" TEXT,
    "abortText" TEXT,
    "partial" BOOLEAN NOT NULL DEFAULT false,
    "result" TEXT,
    "error" TEXT,
    "errorDetail" JSONB,
    "steps" INTEGER NOT NULL DEFAULT 0,
    "inputTokens" BIGINT,
    "outputTokens" BIGINT,
    "reasoningTokens" BIGINT,
    "totalTokens" BIGINT,
    "costMicroUsd" BIGINT,
    "subtreeInputTokens" BIGINT,
    "subtreeOutputTokens" BIGINT,
    "subtreeReasoningTokens" BIGINT,
    "subtreeTotalTokens" BIGINT,
    "subtreeCostMicroUsd" BIGINT,
    "reservedTokens" BIGINT NOT NULL DEFAULT 0,
    "reservedCostMicroUsd" BIGINT NOT NULL DEFAULT 0,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "startedAt" TIMESTAMPTZ(3),
    "finishedAt" TIMESTAMPTZ(3),

    CONSTRAINT "AgentJob_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."AgentStep" (
    "jobId" TEXT NOT NULL,
    "index" INTEGER NOT NULL,
    "generation" INTEGER NOT NULL,
    "format" INTEGER NOT NULL,
    "modelOutput" JSONB,
    "responseMessages" JSONB,
    "usage" JSONB,
    "finishReason" TEXT,
    "startedAt" TIMESTAMPTZ(3) NOT NULL,
    "finishedAt" TIMESTAMPTZ(3),

    CONSTRAINT "AgentStep_pkey" PRIMARY KEY ("jobId","index")
);

-- CreateTable
CREATE TABLE "offshoot"."AgentToolCall" (
    "jobId" TEXT NOT NULL,
    "stepIndex" INTEGER NOT NULL,
    "toolCallId" TEXT NOT NULL,
    "toolName" TEXT NOT NULL,
    "startedAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "finishedAt" TIMESTAMPTZ(3),
    "output" JSONB,
    "error" JSONB,

    CONSTRAINT "AgentToolCall_pkey" PRIMARY KEY ("jobId","stepIndex","toolCallId")
);

-- CreateTable
CREATE TABLE "offshoot"."Blob" (
    "id" TEXT NOT NULL,
    "jobId" TEXT NOT NULL,
    "bytes" BYTEA NOT NULL,

    CONSTRAINT "Blob_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."AgentEvent" (
    "id" BIGSERIAL NOT NULL,
    "jobId" TEXT NOT NULL,
    "at" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "kind" TEXT NOT NULL,
    "actorId" TEXT,
    "data" JSONB NOT NULL DEFAULT '{}',

    CONSTRAINT "AgentEvent_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."InboxItem" (
    "seq" BIGSERIAL NOT NULL,
    "jobId" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "kind" "offshoot"."InboxKind" NOT NULL,
    "role" "offshoot"."MessageRole" NOT NULL DEFAULT 'user',
    "parts" JSONB NOT NULL,
    "actorId" TEXT,
    "consumedAtStep" INTEGER,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT "InboxItem_pkey" PRIMARY KEY ("seq")
);

-- CreateTable
CREATE TABLE "offshoot"."Outbox" (
    "id" BIGSERIAL NOT NULL,
    "jobId" TEXT NOT NULL,
    "kind" "offshoot"."OutboxKind" NOT NULL,
    "key" TEXT NOT NULL,
    "payload" JSONB NOT NULL DEFAULT '{}',
    "attempts" INTEGER NOT NULL DEFAULT 0,
    "nextAttemptAt" TIMESTAMPTZ(3) NOT NULL,
    "lastError" TEXT,
    "createdAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "doneAt" TIMESTAMPTZ(3),
    "deadAt" TIMESTAMPTZ(3),

    CONSTRAINT "Outbox_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."LayerState" (
    "id" TEXT NOT NULL,
    "jobId" TEXT,
    "convoId" TEXT,
    "layerId" TEXT NOT NULL,
    "state" JSONB NOT NULL,
    "version" INTEGER NOT NULL DEFAULT 1,

    CONSTRAINT "LayerState_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."Worker" (
    "id" TEXT NOT NULL,
    "lockKey" SERIAL NOT NULL,
    "host" TEXT NOT NULL,
    "pid" INTEGER NOT NULL,
    "lanes" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "startedAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "seenAt" TIMESTAMPTZ(3) NOT NULL DEFAULT clock_timestamp(),
    "drainingAt" TIMESTAMPTZ(3),

    CONSTRAINT "Worker_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "offshoot"."Lease" (
    "name" TEXT NOT NULL,
    "holder" TEXT NOT NULL,
    "until" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "Lease_pkey" PRIMARY KEY ("name")
);

-- CreateIndex
CREATE INDEX "ApiKey_userId_idx" ON "offshoot"."ApiKey"("userId");

-- CreateIndex
CREATE UNIQUE INDEX "Bot_group_handle_key" ON "offshoot"."Bot"("group", "handle");

-- CreateIndex
CREATE INDEX "Convo_ownerId_id_idx" ON "offshoot"."Convo"("ownerId", "id");

-- CreateIndex
CREATE UNIQUE INDEX "AiMessage_convoId_seq_key" ON "offshoot"."AiMessage"("convoId", "seq");

-- CreateIndex
CREATE UNIQUE INDEX "AiMessage_convoId_clientMessageId_key" ON "offshoot"."AiMessage"("convoId", "clientMessageId");

-- CreateIndex
CREATE INDEX "AgentJob_ownerId_id_idx" ON "offshoot"."AgentJob"("ownerId", "id");

-- CreateIndex
CREATE INDEX "AgentJob_triggeredByIds_idx" ON "offshoot"."AgentJob" USING GIN ("triggeredByIds");

-- CreateIndex
CREATE INDEX "AgentJob_rootJobId_id_idx" ON "offshoot"."AgentJob"("rootJobId", "id");

-- CreateIndex
CREATE INDEX "AgentJob_convoId_id_idx" ON "offshoot"."AgentJob"("convoId", "id");

-- CreateIndex
CREATE INDEX "AgentJob_ancestorIds_idx" ON "offshoot"."AgentJob" USING GIN ("ancestorIds");

-- CreateIndex
CREATE UNIQUE INDEX "AgentJob_parentJobId_parentStep_parentToolCallId_key" ON "offshoot"."AgentJob"("parentJobId", "parentStep", "parentToolCallId");

-- CreateIndex
CREATE UNIQUE INDEX "AgentJob_triggeredById_idempotencyKey_key" ON "offshoot"."AgentJob"("triggeredById", "idempotencyKey");

-- CreateIndex
CREATE INDEX "Blob_jobId_idx" ON "offshoot"."Blob"("jobId");

-- CreateIndex
CREATE INDEX "AgentEvent_jobId_id_idx" ON "offshoot"."AgentEvent"("jobId", "id");

-- CreateIndex
CREATE UNIQUE INDEX "InboxItem_key_key" ON "offshoot"."InboxItem"("key");

-- CreateIndex
CREATE INDEX "InboxItem_jobId_seq_idx" ON "offshoot"."InboxItem"("jobId", "seq");

-- CreateIndex
CREATE UNIQUE INDEX "Outbox_key_key" ON "offshoot"."Outbox"("key");

-- CreateIndex
CREATE INDEX "Outbox_jobId_idx" ON "offshoot"."Outbox"("jobId");

-- CreateIndex
CREATE UNIQUE INDEX "LayerState_jobId_layerId_key" ON "offshoot"."LayerState"("jobId", "layerId");

-- CreateIndex
CREATE UNIQUE INDEX "LayerState_convoId_layerId_key" ON "offshoot"."LayerState"("convoId", "layerId");

-- CreateIndex
CREATE UNIQUE INDEX "Worker_lockKey_key" ON "offshoot"."Worker"("lockKey");

-- AddForeignKey
ALTER TABLE "offshoot"."AiMessage" ADD CONSTRAINT "AiMessage_convoId_fkey" FOREIGN KEY ("convoId") REFERENCES "offshoot"."Convo"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- What Prisma's schema cannot say: a convo has at most one live turn, and the queries of every round look only at rows
-- that have not ended, however many have.
CREATE UNIQUE INDEX "AgentJob_live_turn" ON "offshoot"."AgentJob" ("convoId") WHERE "depth" = 0 AND "state" IN ('pending', 'running');
CREATE INDEX "AgentJob_live_owner" ON "offshoot"."AgentJob" ("ownerId") WHERE "state" IN ('pending', 'running');
CREATE INDEX "AgentJob_live_worker" ON "offshoot"."AgentJob" ("workerId") WHERE "state" = 'running';
CREATE INDEX "AgentJob_unclaimed" ON "offshoot"."AgentJob" ("deadlineAt") WHERE "state" IN ('pending', 'running') AND "claimToken" IS NULL;
CREATE INDEX "AgentJob_pending_delivery" ON "offshoot"."AgentJob" ("deliveredAt") WHERE "state" = 'pending';
CREATE INDEX "Outbox_due" ON "offshoot"."Outbox" ("nextAttemptAt") WHERE "doneAt" IS NULL AND "deadAt" IS NULL;
CREATE INDEX "InboxItem_unread" ON "offshoot"."InboxItem" ("jobId") WHERE "consumedAtStep" IS NULL;
