-- AlterTable
ALTER TABLE "offshoot"."AiMessage" ALTER COLUMN "parts" SET DATA TYPE JSON;

-- AlterTable
ALTER TABLE "offshoot"."AgentStep" ALTER COLUMN "modelOutput" SET DATA TYPE JSON,
ALTER COLUMN "responseMessages" SET DATA TYPE JSON;

-- AlterTable
ALTER TABLE "offshoot"."AgentToolCall" ALTER COLUMN "output" SET DATA TYPE JSON,
ALTER COLUMN "error" SET DATA TYPE JSON;
