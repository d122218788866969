"""What people see: the report's model, its texts and the reporters. Each reporter sees only the model."""
