-- AlterEnum
ALTER TYPE "offshoot"."OutboxKind" ADD VALUE 'outcome';

-- AlterTable
ALTER TABLE "offshoot"."AgentJob" ADD COLUMN     "parkUntil" TIMESTAMPTZ(3),
ADD COLUMN     "parks" INTEGER NOT NULL DEFAULT 0;
