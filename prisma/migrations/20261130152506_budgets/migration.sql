-- AlterTable
ALTER TABLE "offshoot"."AgentTree" DROP COLUMN "maxCostMicroUsd",
DROP COLUMN "maxTotalTokens",
DROP COLUMN "reservedCostMicroUsd",
DROP COLUMN "reservedTokens",
DROP COLUMN "spentCostMicroUsd",
DROP COLUMN "spentTokens";

-- AlterTable
ALTER TABLE "offshoot"."AgentJob" DROP COLUMN "subtreeCostMicroUsd",
DROP COLUMN "subtreeInputTokens",
DROP COLUMN "subtreeOutputTokens",
DROP COLUMN "subtreeReasoningTokens",
DROP COLUMN "subtreeTotalTokens",
ADD COLUMN     "budgeted" BOOLEAN NOT NULL DEFAULT false;
