"""What people see: the report's model, and the reporters. Each reporter sees only the model."""
