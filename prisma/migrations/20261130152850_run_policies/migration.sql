-- AlterTable
ALTER TABLE "offshoot"."AgentJob" ADD COLUMN     "estimatedInputTokens" BIGINT,
ADD COLUMN     "estimatedOutputTokens" BIGINT,
ADD COLUMN     "journalFormat" INTEGER NOT NULL DEFAULT 1;

-- AlterTable
ALTER TABLE "offshoot"."AgentStep" ADD COLUMN     "malformed" BOOLEAN NOT NULL DEFAULT false;
