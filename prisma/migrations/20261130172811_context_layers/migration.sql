-- AlterTable
ALTER TABLE "offshoot"."LayerState" ADD COLUMN     "disabled" BOOLEAN NOT NULL DEFAULT false,
ADD COLUMN     "ownerId" TEXT,
ADD COLUMN     "parentVersion" INTEGER;

-- CreateTable
CREATE TABLE "offshoot"."LayerPastState" (
    "id" BIGSERIAL NOT NULL,
    "jobId" TEXT,
    "convoId" TEXT,
    "layerId" TEXT NOT NULL,
    "version" INTEGER NOT NULL,
    "state" JSONB NOT NULL,

    CONSTRAINT "LayerPastState_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "LayerPastState_jobId_layerId_version_idx" ON "offshoot"."LayerPastState"("jobId", "layerId", "version");

-- CreateIndex
CREATE INDEX "LayerPastState_convoId_layerId_version_idx" ON "offshoot"."LayerPastState"("convoId", "layerId", "version");
