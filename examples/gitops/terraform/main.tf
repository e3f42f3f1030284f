# Terraform or OpenTofu: terraform init && terraform apply. `terraform destroy` runs the hook of the uninstallation, as helm does.
terraform {
  required_version = ">= 1.5"
  required_providers {
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.0"
    }
  }
}

variable "kubeconfig" {
  description = "Kubeconfig of the cluster."
  type        = string
  default     = "~/.kube/config"
}

variable "image_repository" {
  description = "Where your nodes pull the image of gracectl from."
  type        = string
  default     = "registry.example.com/gracectl"
}

provider "helm" {
  kubernetes = {
    config_path = var.kubeconfig
  }
}

resource "helm_release" "gracectl" {
  name             = "gracectl"
  namespace        = "gracectl"
  create_namespace = true
  # This repository, beside yours or as a submodule of it.
  chart = "${path.module}/../../../helm/gracectl"

  # The hook of the uninstallation waits for active terminations, two minutes at most (uninstall.wait).
  timeout = 300

  values = [file("${path.module}/values.yaml")]
  set = [
    {
      name  = "image.repository"
      value = var.image_repository
    },
  ]
}
