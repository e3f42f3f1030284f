# A queue of notices for gracectl: terraform apply -var role=gracectl -var 'auto_scaling_groups=["workers-a"]'
# Then name the output queue_url in the settings (docs/interruptions.md).
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "role" {
  description = "Name of the IAM role of gracectl's ServiceAccount, which gets the policy; empty for none"
  type        = string
  default     = ""
}

variable "auto_scaling_groups" {
  description = "Auto Scaling groups of the cluster, for their lifecycle hooks; empty for all of the region"
  type        = list(string)
  default     = []
}

data "aws_caller_identity" "this" {}
data "aws_region" "this" {}
data "aws_partition" "this" {}

locals {
  events = {
    spot-interruption = {
      source      = ["aws.ec2"]
      detail-type = ["EC2 Spot Instance Interruption Warning"]
    }
    rebalance-recommendation = {
      source      = ["aws.ec2"]
      detail-type = ["EC2 Instance Rebalance Recommendation"]
    }
    instance-state-change = {
      source      = ["aws.ec2"]
      detail-type = ["EC2 Instance State-change Notification"]
      detail      = { state = ["shutting-down", "terminated"] }
    }
    scheduled-change = {
      source      = ["aws.health"]
      detail-type = ["AWS Health Event"]
      detail      = { service = ["EC2"], eventTypeCategory = ["scheduledChange"] }
    }
    lifecycle-action = merge(
      { source = ["aws.autoscaling"], detail-type = ["EC2 Instance-terminate Lifecycle Action"] },
      length(var.auto_scaling_groups) == 0 ? {} : { detail = { AutoScalingGroupName = var.auto_scaling_groups } },
    )
  }
}

resource "aws_sqs_queue" "dead_letters" {
  name_prefix               = "gracectl-dead-letters-"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue" "this" {
  name_prefix                = "gracectl-"
  max_message_size           = 262144
  message_retention_seconds  = 172800 # as long as a lifecycle hook can wait
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  visibility_timeout_seconds = 20
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 100 # while the API server is away, messages come again every 20 s
  })
}

resource "aws_sqs_queue_policy" "this" {
  queue_url = aws_sqs_queue.this.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "EventBridge"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.this.arn
        Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.this.account_id } }
      },
      {
        Sid       = "EncryptedOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.this.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "this" {
  for_each      = local.events
  name_prefix   = "gracectl-${each.key}-"
  event_pattern = jsonencode(each.value)
}

resource "aws_cloudwatch_event_target" "this" {
  for_each = aws_cloudwatch_event_rule.this
  rule     = each.value.name
  arn      = aws_sqs_queue.this.arn
}

resource "aws_iam_role_policy" "this" {
  count = var.role == "" ? 0 : 1
  name  = "gracectl-interruptions"
  role  = var.role
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"]
        Resource = aws_sqs_queue.this.arn
      },
      {
        Effect   = "Allow"
        Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
        Resource = "arn:${data.aws_partition.this.partition}:autoscaling:${data.aws_region.this.name}:${data.aws_caller_identity.this.account_id}:autoScalingGroup:*"
      },
      {
        Effect   = "Allow"
        Action   = "autoscaling:DescribeLifecycleHooks"
        Resource = "*"
      },
    ]
  })
}

output "queue_url" {
  description = "interruption.sources[].options.queueUrl"
  value       = aws_sqs_queue.this.url
}

output "dead_letters_url" {
  description = "Messages that gracectl has refused"
  value       = aws_sqs_queue.dead_letters.url
}
